"""One folder for each command beyond training and testing; nothing else imports them."""

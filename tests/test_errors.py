import pytest

from xcit_mm.errors import MAX_LINE, ArgumentError, DependencyError, UserError, printable, reason


@pytest.mark.parametrize('kind', [UserError, ArgumentError, DependencyError])
def test_a_message_cannot_write_to_the_terminal(kind):
    message = str(kind('the name \x1b[2J\x07 of \udcff\r is é\nin two lines'))
    assert message == 'the name ?[2J? of ?? is é\nin two lines'


def test_a_message_keeps_its_start_and_its_remedy():
    message = str(UserError(f'the name {"x" * 10**6} is too long: shorten it\nmore'))
    assert message.startswith('the name xxx') and message.endswith('too long: shorten it\nmore')
    assert len(message) < MAX_LINE + 20


def test_the_reason_of_another_package_is_printable_and_short():
    shown = reason(ValueError('\x1b' + 'x' * 10**6 + '\nsecond line'))
    assert shown.startswith('ValueError: ?xxx') and len(shown) < MAX_LINE + 20


def test_text_that_is_short_and_printable_stays_as_it_is():
    assert printable('a sentence, 12 % of it\nand another') == 'a sentence, 12 % of it\nand another'

"""Feature maps whose windows are computed when heads read them."""

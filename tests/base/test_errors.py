"""What the console, the log and the messages show of texts that come from files."""

import pytest
from helpers.toy import toy_runner

from xcit_mm.base.errors import MAX_LINE, ArgumentError, DependencyError, UserError, reason


@pytest.mark.parametrize('kind', [UserError, ArgumentError, DependencyError])
def test_a_message_cannot_write_to_the_terminal(kind):
    message = str(kind('the name \x1b[2J\x07 of \udcff\r is é\nin 12 % of two lines'))
    assert message == 'the name ?[2J? of ?? is é\nin 12 % of two lines'


def test_a_message_keeps_its_start_and_its_remedy():
    message = str(UserError(f'the name {"x" * 10**6} is too long: shorten it\nmore'))
    assert message.startswith('the name xxx') and message.endswith('too long: shorten it\nmore')
    assert len(message) < MAX_LINE + 20
    shown = reason(ValueError('\x1b' + 'x' * 10**6 + '\nsecond line'))
    assert shown.startswith('ValueError: ?xxx') and len(shown) < MAX_LINE + 20


def test_control_characters_reach_neither_the_console_nor_the_log(tmp_path, capfd):
    logger = toy_runner(tmp_path, log_level='INFO', custom_hooks=[]).logger
    logger.info(f'one of a \x1b[2Jfile {"x" * 5000}')
    logger.warning('two %s\n\tnext \x9b31m %d', '\x1b[2J', 3)
    printed = capfd.readouterr()
    (log,) = tmp_path.glob('*/*.log')
    for shown in (log.read_text(), printed.out + printed.err):
        assert 'one of a ?[2Jfile ' + 'x' * 5000 + '\n' in shown
        assert 'two ?[2J\n        next ?31m 3\n' in shown

"""What the console and the log file show of texts that come from files."""

from helpers.toy import toy_runner


def test_control_characters_reach_neither_the_console_nor_the_log(tmp_path, capfd):
    logger = toy_runner(tmp_path, log_level='INFO', custom_hooks=[]).logger
    logger.info(f'one of a \x1b[2Jfile {"x" * 5000}')
    logger.warning('two %s\n\tnext \x9b31m %d', '\x1b[2J', 3)
    printed = capfd.readouterr()
    (log,) = tmp_path.glob('*/*.log')
    for shown in (log.read_text(), printed.out + printed.err):
        assert 'one of a ?[2Jfile ' + 'x' * 5000 + '\n' in shown
        assert 'two ?[2J\n        next ?31m 3\n' in shown

"""`python -m stackmgr`, and the command `stackmgr`."""

import signal


def main() -> None:
    # A Ctrl-C, also while the modules are imported, ends the process and prints no traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from stackmgr import cli  # noqa: PLC0415 - takes a good part of a second

    cli.main()


if __name__ == "__main__":
    main()

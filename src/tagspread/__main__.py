"""``python -m tagspread``: the command line, without a script on the path."""

from tagspread.cli import main

main()

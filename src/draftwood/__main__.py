"""`python -m draftwood`"""

from draftwood.cli.main import main

if __name__ == "__main__":
    main()

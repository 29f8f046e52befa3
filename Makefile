.venv/bin/python: ; true

"""`python -m tests.service.executors.program …`: does what a command would, in the interpreter that it is called in.

`warm` is what a warm interpreter calls first; `-c CODE …` is as of python; anything else is a program to become.
"""

import os
import sys

if sys.argv[1] == "-c":
    code, sys.argv[1:] = sys.argv[2], sys.argv[3:]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
elif sys.argv[1] != "warm":
    os.execvp(sys.argv[1], sys.argv[1:])

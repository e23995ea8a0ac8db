"""The WSGI application, built from the environment.

Each worker process imports it after the fork, because the pool it opens must not be shared.
"""

import os

from stackmgr import startup

application = startup.build(os.environ)

"""The settings of Hypothesis.

In CI the cases are the same in every run; elsewhere each run tries others.  A failure prints the smallest
case that Hypothesis finds, and how to run it again.
"""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "stackmgr",
    # Nothing here is about speed: the machine may be slow, and the database is a real one.
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        # A fixture of one test is shared by its cases; each case makes managers of its own instead.
        HealthCheck.function_scoped_fixture,
    ],
    # Not `explain`, which takes a minute to say what the smallest case shows.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    derandomize=os.environ.get("CI") == "true",
    database=None,
    print_blob=True,
)
settings.load_profile("stackmgr")

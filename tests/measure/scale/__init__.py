"""How the service's statements behave on millions of stacks: a loader, and a report of sizes and costs.

    python -m tests.measure.scale load --data DIR --stacks 10000
    python -m tests.measure.scale load --data DIR --stacks 8000000
    python -m tests.measure.scale report --data DIR --small 10000 --large 8000000

DIR is the data directory of an embedded PostgreSQL, made when it is missing; each size is a database of it.
"""

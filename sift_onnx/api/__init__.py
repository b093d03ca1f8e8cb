"""The verbs as functions: ``sift_onnx.prune``, ``sift_onnx.benchmark`` and so on.

Their results are records: typed, with ``to_dict()`` for the JSON of the verb. They print as the tables of the command
line, and notebooks render them so.
"""

from sift_onnx.reports.printing import print_records

print_records()

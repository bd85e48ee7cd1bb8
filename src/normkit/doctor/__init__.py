"""What is wrong with the norms of a model: ``normkit.doctor(model, batch)``.

rules       one file a rule, and the table of them
examine     doctor(): run the model, ask every rule
case        what the rules look at: one run, with numbers
report      Finding, Report; page: the report as HTML
watch       Doctor: in a training loop; last_call, readings: what it takes from there
callbacks   the same for Hugging Face's Trainer and Lightning
target      what the command line examines: a function, or a folder with a config
"""

import sys

from normkit.callable_part import make_callable
from normkit.doctor.callbacks import HuggingFaceCallback, LightningCallback
from normkit.doctor.examine import assert_healthy, doctor
from normkit.doctor.report import Finding, Report
from normkit.doctor.rules import RULES, rule_of
from normkit.doctor.watch import Doctor

__all__ = [
    "RULES",
    "Doctor",
    "Finding",
    "HuggingFaceCallback",
    "LightningCallback",
    "Report",
    "assert_healthy",
    "doctor",
    "rule_of",
]

make_callable(sys.modules[__name__], doctor)

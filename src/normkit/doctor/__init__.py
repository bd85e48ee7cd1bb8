"""What is wrong with the norms of a model: ``normkit.doctor(model, batch)``.

rules       one file a rule, and the table of them; probing, repair: what they share
examine     doctor(): run the model, ask every rule
case        what the rules look at: one run, with numbers
report      Finding, Report; page, page_style: the report as HTML; writing: files that are whole
watch       Doctor: in a training loop; last_call, readings: what it remembers and reads there
callbacks   for Hugging Face's Trainer and Lightning
target      what the command line examines; folder, safetensors_files, offline: a Hugging Face folder
fixing      the command's --fix, rule by rule, verified
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

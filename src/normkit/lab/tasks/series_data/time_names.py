"""What columns are called that say when a row was, or a part of it."""

__all__ = ["CLOCK", "DATES", "NOT_SERIES", "PARTS", "QUARTER", "TIMES", "YEARS"]

DATES = ("date", "datetime", "date_time", "timestamp", "ds", "datum", "zeitstempel", "utc")
TIMES = (*DATES, "time", "year", "unix", "epoch", "zeit", "jahr", "stamp", "t")
YEARS = ("year", "yr", "yyyy", "jahr", "#yy", "yy")
PARTS = {
    "month": ("month", "mo", "mon", "monat", "mm"),
    "day": ("day", "dd", "dom", "tag", "day_of_month"),
    "day of year": ("doy", "dayofyear", "day_of_year", "yday"),
}
QUARTER = ("quarter", "qtr", "quartal")
CLOCK = {
    "hour": (3600, ("hour", "hr", "hh", "stunde", "std", "hours")),
    "minute": (60, ("minute", "min", "minutes")),
    "second": (1, ("second", "sec", "seconds", "ss", "sekunde")),
}
NOT_SERIES = {*TIMES, *YEARS, *QUARTER}.union(*PARTS.values(), *(names for _, names in CLOCK.values()))

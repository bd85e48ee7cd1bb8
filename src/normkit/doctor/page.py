"""The report as a page. (to come)"""

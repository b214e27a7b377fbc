"""The provenance check: does an algorithm bring every part to where it must be, once?"""

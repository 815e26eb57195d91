"""(law of the package)"""

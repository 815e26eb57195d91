from ledgermq_native import audit_scan as audit_scan
from ledgermq_native import entries as entries
from ledgermq_native import front as front

__version__: str

"""Every metric and attribute name of the bridge, with unit and description, written once.

Own metrics mirror the Collector's, with `otel_bridge_` for `otelcol_` and items for spans where a metric
concerns every signal. Prometheus adds `_total` to counters.

One module a subject; all names are reached as `catalog.NAME`.
"""

from otel_bridge.catalog.alerting import *
from otel_bridge.catalog.consistency import *
from otel_bridge.catalog.control import *
from otel_bridge.catalog.data_path import *
from otel_bridge.catalog.definitions import *
from otel_bridge.catalog.derive import *
from otel_bridge.catalog.engines import *
from otel_bridge.catalog.gpu import *
from otel_bridge.catalog.join import *
from otel_bridge.catalog.kernel import *
from otel_bridge.catalog.limits import *
from otel_bridge.catalog.rules import *
from otel_bridge.catalog.sample import *
from otel_bridge.catalog.ui import *

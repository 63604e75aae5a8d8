"""Golden signals: how much, how fast, how often wrong, how full."""

from dashboards import panels
from dashboards.layout import MODEL, SERVICE, assemble, query_variable
from dashboards.links import to_root_cause
from dashboards.panels import Section
from dashboards.queries import engines, golden
from dashboards.queries.variables import ENGINE_JOBS

NAMES = {"vllm": "vLLM", "triton": "Triton", "tgi": "TGI", "sglang": "SGLang"}

now = Section(
    "Now",
    [
        panels.number(
            "Requests",
            "Requests a second that servers took, before sampling.",
            "reqps",
            golden.REQUESTS_NOW,
            width=5,
        ),
        panels.number(
            "Errors",
            "Share of server spans with status ERROR.",
            "percentunit",
            golden.ERROR_RATIO_NOW,
            width=5,
            steps=[(0.001, "orange"), (0.01, "red")],
        ),
        panels.number(
            "P99 latency", "99 % of server spans took no longer than this.", "s", golden.P99_NOW, width=5
        ),
        panels.number(
            "P95 to the first token",
            "95 % of requests had their first token within this time, as the engine says.",
            "s",
            golden.FIRST_TOKEN_NOW,
            width=5,
        ),
        panels.number(
            "Output tokens", "Tokens a second that engines wrote.", "short", golden.OUTPUT_TOKENS_NOW
        ),
    ],
)
signals = Section(
    "Traffic, latency, errors, saturation",
    [
        panels.lines(
            "Requests by service", "Server spans a second.", "reqps", golden.REQUESTS, links=to_root_cause()
        ),
        panels.lines(
            "Tokens by model, at the engine",
            "Tokens a second that engines read (input) and wrote (output); one count a call.",
            "short",
            golden.TOKENS,
        ),
        panels.lines(
            "Latency", "Duration of server spans; dots are traces to look at.", "s", golden.LATENCY, width=8
        ),
        panels.lines(
            "Time to the first token",
            "From a request's arrival at the engine to its first token.",
            "s",
            golden.FIRST_TOKEN,
            width=8,
        ),
        panels.lines(
            "Time an output token", "After the first one, at the engine.", "s", golden.TOKEN_TIME, width=8
        ),
        panels.lines(
            "Error ratio by service",
            "Server spans with status ERROR as a share of all.",
            "percentunit",
            golden.ERROR_RATIO,
            links=to_root_cause(),
        ),
        panels.lines(
            "Failed calls by error",
            "Calls of models that failed, as clients saw them.",
            "cps",
            golden.ERRORS_BY_TYPE,
        ),
        panels.heatmap(
            "GPU utilisation",
            "How many GPUs are how busy: share of time in which a kernel ran on them.",
            "percentunit",
            golden.GPU_UTILIZATION,
        ),
    ],
)
calls = Section(
    "Calls of models, as their clients see them",
    [
        panels.lines(
            "Duration of calls", "From call to last token, at the client.", "s", golden.CALL_LATENCY, width=8
        ),
        panels.lines(
            "Time in the engine's queue",
            "Before the first batch that a request was in.",
            "s",
            golden.QUEUE_TIME,
            width=8,
        ),
        panels.lines("Prompt length", "UTF-8 bytes of prompts' text.", "bytes", golden.PROMPT_BYTES, width=8),
        panels.lines(
            "Tokens by model, at the client",
            "Tokens a second that clients were told of.",
            "short",
            golden.CLIENT_TOKENS,
            width=24,
        ),
    ],
)
own = [
    Section(
        "vLLM: $vllm",
        [
            panels.lines(
                "Requests in vLLM", "Running, and waiting to run.", "short", engines.VLLM_REQUESTS, width=8
            ),
            panels.lines(
                "Requests done by vLLM",
                "A second, by why they ended.",
                "reqps",
                engines.VLLM_FINISHED,
                width=8,
            ),
            panels.lines(
                "Tokens of vLLM", "A second: read, and written.", "short", engines.VLLM_TOKENS, width=8
            ),
            panels.lines("P95 latency in vLLM", "By phase of a request.", "s", engines.VLLM_LATENCY, width=8),
            panels.lines(
                "Caches of vLLM",
                "Share of the KV cache in use, and of prompt tokens found in the prefix cache.",
                "percentunit",
                engines.VLLM_CACHE,
                width=8,
            ),
            panels.lines(
                "Preemptions in vLLM",
                "Requests a second that lost their place in the KV cache.",
                "cps",
                engines.VLLM_PREEMPTIONS,
                width=8,
            ),
        ],
        variable="vllm",
    ),
    Section(
        "Triton: $triton",
        [
            panels.lines(
                "Requests done by Triton",
                "A second, done and failed.",
                "reqps",
                engines.TRITON_REQUESTS,
                width=8,
            ),
            panels.lines(
                "Mean latency in Triton", "In all, and in the queue.", "µs", engines.TRITON_TIME, width=8
            ),
            panels.lines(
                "Requests waiting in Triton", "Not executed yet.", "short", engines.TRITON_PENDING, width=8
            ),
        ],
        variable="triton",
    ),
    Section(
        "TGI: $tgi",
        [
            panels.lines("Requests to TGI", "A second.", "reqps", engines.TGI_REQUESTS, width=8),
            panels.lines("P95 latency in TGI", "In all, and a token.", "s", engines.TGI_LATENCY, width=8),
            panels.lines(
                "Requests in TGI", "In the queue, and in the batch.", "short", engines.TGI_WAITING, width=8
            ),
        ],
        variable="tgi",
    ),
    Section(
        "SGLang: $sglang",
        [
            panels.lines(
                "Tokens of SGLang", "A second: read, and written.", "short", engines.SGLANG_TOKENS, width=8
            ),
            panels.lines(
                "P95 to SGLang's first token",
                "From arrival to first token.",
                "s",
                engines.SGLANG_LATENCY,
                width=8,
            ),
            panels.lines(
                "Caches of SGLang",
                "Share of the KV cache in use, and of the prefix found.",
                "percentunit",
                engines.SGLANG_CACHE,
                width=8,
            ),
        ],
        variable="sglang",
    ),
]

dashboard = assemble(
    "otel-bridge-golden",
    "OTel Bridge / Golden signals",
    "Requests, tokens, latency, errors and GPU of inference services, made of spans before sampling; below, "
    "engines' own metrics, where they are scraped.",
    [now, signals, calls, *own],
    [
        SERVICE,
        MODEL,
        *(query_variable(name, NAMES[name], query, hidden=True) for name, query in ENGINE_JOBS.items()),
    ],
)

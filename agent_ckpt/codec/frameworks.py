"""What of LangChain and LangGraph itself is looked up without the user's leave: a fixed list of modules of data."""

from __future__ import annotations

_MODULES = frozenset(
    (
        "langchain_core.agents",
        "langchain_core.documents.base",
        "langchain_core.documents.compressor",
        "langchain_core.outputs.chat_generation",
        "langchain_core.outputs.chat_result",
        "langchain_core.outputs.generation",
        "langchain_core.outputs.llm_result",
        "langchain_core.outputs.run_info",
        "langchain_core.prompt_values",
        "langchain_core.runnables.utils",
        "langgraph.pregel._io",
        "langgraph.store.base",
        "langgraph.types",
        "pydantic.networks",
        "pydantic.types",
    )
)


def is_framework(module: str) -> bool:
    """Whether a module is one of LangChain's or LangGraph's modules of data."""
    return module in _MODULES or module.startswith("langchain_core.messages.")

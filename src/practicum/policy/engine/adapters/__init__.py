"""Engines that exist already, behind the same `Policy`: vLLM, SGLang, OpenAI-compatible servers."""

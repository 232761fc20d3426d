"""Answers in words by a decoder: prompts, instructions, dialogues."""

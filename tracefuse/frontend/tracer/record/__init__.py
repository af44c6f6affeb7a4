"""The record of one trace: its nodes, its inputs, its assumptions."""

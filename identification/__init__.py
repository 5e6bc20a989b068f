"""From measurements to a plant: readers of traces and workloads, row rules, excitation, fit, intervals and scores."""

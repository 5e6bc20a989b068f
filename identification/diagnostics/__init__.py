"""What a fit is held against: residuals, commands, clock, excitation. Each returns findings and sentences that say what to do."""

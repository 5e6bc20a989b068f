"""The structures that a plant may have: their terms, their robust fit, their choice by steps left out, their intervals."""

"""The colours of every picture and page. Imports nothing."""

COLOURS = (
    "#0072B2",  # the first seven are Okabe and Ito's
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8A2BE2",
    "#882255",
    "#654321",
)
"""Ten that people tell apart on a white ground, whatever their colour vision."""

INK = "#444444"
RULE = "#e4e4e4"

"use strict";
// Draws every figure, in the palette that the reader prefers; on paper always the light one.
(() => {
  const swaps = JSON.parse(document.getElementById("swaps").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const plots = [...document.querySelectorAll(".plot")];
  const config = {
    displayModeBar: touch.matches ? false : "hover",
    displaylogo: false,
    showSendToCloud: false, // what a run holds stays with its reader
    plotlyServerURL: "",
    modeBarButtons: [["toImage", "resetScale2d"]],
  };

  // The figures are stored in the light palette: a colour's exact code is its role.
  function figureOf(plot, isDark) {
    const text = plot.nextElementSibling.textContent;
    const figure = JSON.parse(isDark ? text.replace(/#[0-9a-f]{6}/g, (code) => swaps[code] ?? code) : text);
    delete figure.layout.width;
    if (touch.matches) figure.layout.dragmode = false; // a finger scrolls the page
    return figure;
  }

  function draw(isDark) {
    for (const plot of plots) {
      const { data, layout } = figureOf(plot, isDark);
      const filename = plot.parentElement.id.replace("figure", "headway");
      Plotly.react(plot, data, layout, { ...config, toImageButtonOptions: { scale: 2, filename } });
    }
  }

  draw(dark.matches);
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => Plotly.Plots.resize(target)));
  plots.forEach((plot) => resized.observe(plot));
  dark.addEventListener("change", () => draw(dark.matches));

  // Paper is narrower than the window, and its layout is seen by no observer.
  const folds = [...document.querySelectorAll("details")];
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = folds.filter((fold) => !fold.open);
    closed.forEach((fold) => (fold.open = true)); // paper cannot be unfolded
    draw(false);
    for (const plot of plots) Plotly.relayout(plot, { width: 660 });
  });
  addEventListener("afterprint", () => {
    closed.forEach((fold) => (fold.open = false));
    draw(dark.matches);
  });
})();

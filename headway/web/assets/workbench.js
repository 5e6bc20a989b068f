"use strict";
// A slider's handle gets the name that stands above it: readers that see none would hear a number without one.
new MutationObserver(() => {
  for (const handle of document.querySelectorAll('.knob [role="slider"]:not([aria-label])')) {
    const name = handle.closest(".knob").querySelector("label");
    if (name) handle.setAttribute("aria-label", name.textContent);
  }
}).observe(document.documentElement, { childList: true, subtree: true });
// A choice closes the list that it was made from.
document.addEventListener("click", (event) => {
  const open = document.querySelector("details.runs[open]");
  if (open && (!open.contains(event.target) || event.target.closest("a"))) open.open = false;
});

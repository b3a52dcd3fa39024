// Read-outs beside the pointer, and for the arrow keys. The page is whole without them.
(() => {
  const tip = document.body.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.documentElement.classList.add("live");

  const middle = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };

  for (const svg of document.querySelectorAll(".plot svg")) {
    const marks = [...svg.querySelectorAll("circle, rect")].filter((mark) => mark.firstElementChild);
    if (!marks.length) continue;
    for (const mark of marks) {
      mark.dataset.says = mark.firstElementChild.textContent;
      mark.firstElementChild.remove();
    }
    // The browser's own read-out of the picture's title would cover the points'.
    const title = svg.querySelector("title");
    svg.setAttribute("aria-label", title.textContent + ". Arrow keys read its points.");
    svg.removeAttribute("aria-labelledby");
    title.remove();
    svg.tabIndex = 0;
    const read = svg.closest("figure").querySelector(".read");
    let at = -1;

    const show = (index, aloud) => {
      marks[at]?.classList.remove("on");
      at = index;
      const mark = marks[at];
      tip.hidden = !mark;
      if (!mark) return;
      mark.classList.add("on");
      tip.textContent = mark.dataset.says;
      if (aloud) read.textContent = mark.dataset.says;
      const [x, y] = middle(mark);
      const { width, height } = tip.getBoundingClientRect();
      const left = Math.max(8, Math.min(x - width / 2, document.documentElement.clientWidth - width - 8));
      const top = y - height - 14 < 4 ? y + 16 : y - height - 14;
      tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
    };

    const nearest = (event) => {
      let found = -1, least = 24;
      marks.forEach((mark, index) => {
        const box = mark.getBoundingClientRect();
        const inside = mark.tagName === "rect" && event.clientX >= box.left &&
          event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
        const [x, y] = middle(mark);
        const distance = inside ? 0 : Math.hypot(x - event.clientX, y - event.clientY);
        if (distance < least) [found, least] = [index, distance];
      });
      return found;
    };

    svg.addEventListener("pointermove", (event) => show(nearest(event), false));
    svg.addEventListener("pointerdown", (event) => show(nearest(event), true));
    svg.addEventListener("pointerleave", () => show(-1, false));
    svg.addEventListener("blur", () => show(-1, false));
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      if (event.key === "Escape") show(-1, false);
      if (!(event.key in steps)) return;
      event.preventDefault();
      const next = at < 0 && steps[event.key] < 0 ? marks.length - 1 : at + steps[event.key];
      show((next + marks.length) % marks.length, true);
    });
  }
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();

"use strict";
(() => {
  // the table: press a heading to sort by it, again to turn it round; blanks stay last
  const table = document.getElementById("metrics");
  if (table) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
      const text = heading.classList.contains("text");
      const first = text ? "ascending" : "descending";
      const other = text ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === first ? other : first;
      headings.forEach(one => one.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const value = row => row.cells[column].dataset.value;
      const compare = (a, b) => {
        const [left, right] = [value(a), value(b)];
        if (left === "" || right === "") return (left === "") - (right === "");
        return sign * (text ? left.localeCompare(right, undefined, { numeric: true }) : left - right);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    }));
  }

  // one tag at a time; without this script all of them are there, one below the other
  const which = document.getElementById("which");
  if (which) {
    const panels = [...document.querySelectorAll(".panel")];
    const show = id => {
      panels.forEach(panel => { panel.hidden = panel.id !== id; });
      which.value = id;
    };
    const step = by => {
      const next = (which.selectedIndex + by + panels.length) % panels.length;
      show(panels[next].id);
    };
    const follow = () => {
      const panel = panels.find(one => "#" + one.id === location.hash);
      if (!panel) return;
      show(panel.id);
      panel.scrollIntoView();
      panel.focus({ preventScroll: true });
    };
    which.addEventListener("change", () => show(which.value));
    document.getElementById("before").addEventListener("click", () => step(-1));
    document.getElementById("after").addEventListener("click", () => step(1));
    addEventListener("hashchange", follow);
    show(panels[0].id);
    follow();
  }
})();

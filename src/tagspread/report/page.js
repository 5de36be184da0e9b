"use strict";
(() => {
  // table of metrics: click a heading to sort, again to reverse the order; empty cells stay last
  const table = document.getElementById("metrics");
  if (table) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
      const text = heading.classList.contains("text");
      const initial = text ? "ascending" : "descending";
      const reversed = text ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === initial ? reversed : initial;
      headings.forEach(other => other.removeAttribute("aria-sort"));
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

  // examples: show one tag at a time; without JavaScript, all tags are shown one below the other
  const select = document.getElementById("tag");
  if (select) {
    const panels = [...document.querySelectorAll(".panel")];
    const show = id => {
      panels.forEach(panel => { panel.hidden = panel.id !== id; });
      select.value = id;
    };
    const step = by => {
      const next = (select.selectedIndex + by + panels.length) % panels.length;
      show(panels[next].id);
    };
    const follow = () => {
      const panel = panels.find(candidate => "#" + candidate.id === location.hash);
      if (!panel) return;
      show(panel.id);
      panel.scrollIntoView();
      panel.focus({ preventScroll: true });
    };
    select.addEventListener("change", () => show(select.value));
    document.getElementById("previous").addEventListener("click", () => step(-1));
    document.getElementById("next").addEventListener("click", () => step(1));
    addEventListener("hashchange", follow);
    show(panels[0].id);
    follow();
  }
})();

"use strict";
// A token's numbers on hover, focus and tap; the arrow keys move from token to token and from round to round.
(() => {
  const words = JSON.parse(document.getElementById("words").textContent);
  const detail = document.getElementById("detail");
  const prompt = document.querySelector(".prompt");
  let chosen = null;

  prompt.scrollTop = prompt.scrollHeight; // what the answer goes on from

  const add = (parent, tag, kind, text) => {
    const made = parent.appendChild(document.createElement(tag));
    made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const figure = (value) => (value >= 0.001 ? value.toFixed(3) : value.toExponential(1));
  const escaped = (text) => JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
  const spelled = (token) => escaped(token.text || "…").replaceAll(" ", "␣");
  const duration = (seconds) => `${(1e3 * seconds).toPrecision(3)} ms`;

  for (const sample of document.querySelectorAll(".sample")) {
    const rounds = JSON.parse(sample.querySelector(".rounds-data").textContent);

    const of = (element) => {
      const round = rounds[element.dataset.round - 1];
      const place = Number(element.dataset.place);
      const own = place === round.drafted.length;
      return { round, own, token: own ? round.next : round.drafted[place] };
    };

    const odds = (parent, name, value, colour) => {
      add(parent, "span", "", name);
      const bar = add(parent, "i", value === null ? "none" : colour);
      bar.style.width = `${100 * (value ?? 0)}%`;
      add(parent, "b", "", value === null ? "–" : figure(value));
    };

    const show = (element) => {
      const { round, own, token } = of(element);
      const fate = words.what[own ? token.kind : token.decision];
      detail.replaceChildren();
      detail.className = `c${words.origins[own ? "target" : token.origin]}`;
      const name = add(detail, "div", "");
      add(name, "div", "word", spelled(token));
      add(name, "div", "fate", own ? `the target’s, ${fate}` : `guessed by ${token.origin}, ${fate}`);
      const both = add(detail, "div", "odds");
      odds(both, "target", token.target_p, "c0");
      odds(both, "draft", token.draft_p, `c${own ? 2 : words.origins[token.origin]}`);
      const kept = round.drafted.filter((guess) => guess.decision === "accepted").length;
      const guesses = round.drafted.length ? `K = ${round.k}, ${words.why[round.why]}, ${kept} of ${round.drafted.length} kept, ` : "";
      add(detail, "div", "where", `round ${round.round} of ${rounds.length}: ${guesses}` +
        `draft ${duration(round.draft_s)}, target ${duration(round.target_s)}, together ${duration(round.seconds)} · id ${token.id}`);
      detail.hidden = false;
      mark(element.dataset.round);
    };

    const mark = (round) => {
      for (const old of document.querySelectorAll(".near")) old.classList.remove("near");
      for (const one of sample.querySelectorAll(`[data-round="${round}"]`)) one.classList.add("near");
    };

    const choose = (element) => {
      if (chosen) chosen.setAttribute("aria-selected", "false");
      chosen = element;
      chosen.setAttribute("aria-selected", "true");
      show(element);
    };

    const clear = () => {
      for (const old of document.querySelectorAll(".near")) old.classList.remove("near");
      detail.hidden = true;
    };

    for (const list of sample.querySelectorAll(".tokens")) {
      const tokens = [...list.querySelectorAll(".token")];
      if (!tokens.length) continue;
      let current = tokens[0];
      current.tabIndex = 0; // one stop for the Tab key, the arrow keys inside

      const go = (element) => {
        if (!element) return;
        current.tabIndex = -1;
        current = element;
        current.tabIndex = 0;
        current.focus();
      };
      const firstOf = (step) => {
        const here = current.dataset.round;
        const others = tokens.filter((one) => Math.sign(one.dataset.round - here) === step);
        const round = (step > 0 ? others[0] : others.at(-1))?.dataset.round;
        return others.find((one) => one.dataset.round === round);
      };

      list.addEventListener("keydown", (event) => {
        const at = tokens.indexOf(current);
        const moves = {
          ArrowRight: () => tokens[at + 1], ArrowLeft: () => tokens[at - 1],
          ArrowDown: () => firstOf(1), ArrowUp: () => firstOf(-1),
          Home: () => tokens[0], End: () => tokens.at(-1),
        };
        if (event.key === "Escape") { event.target.blur(); clear(); }
        if (!(event.key in moves) || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        go(moves[event.key]());
      });
      list.addEventListener("focusin", (event) => {
        const token = event.target.closest(".token");
        if (!token) return;
        if (token !== current) { current.tabIndex = -1; current = token; current.tabIndex = 0; }
        choose(token);
      });
      list.addEventListener("focusout", () => {
        if (chosen) chosen.setAttribute("aria-selected", "false");
        chosen = null;
        clear();
      });
      list.addEventListener("click", (event) => go(event.target.closest(".token")));
      list.addEventListener("pointerover", (event) => {
        const token = event.target.closest(".token");
        if (token && event.pointerType === "mouse") show(token);
      });
      list.addEventListener("pointerleave", () => (chosen ? show(chosen) : clear()));
    }

    for (const block of sample.querySelectorAll(".block")) {
      const first = sample.querySelector(`.rounds .round[data-round="${block.dataset.round}"] .token`);
      if (!first) continue;
      block.addEventListener("pointerenter", () => show(first));
      block.addEventListener("pointerleave", () => (chosen ? show(chosen) : clear()));
      block.addEventListener("click", () => first.focus());
    }
  }
})();

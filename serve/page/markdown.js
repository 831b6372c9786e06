"use strict";
/* Markdown as elements. Every character of a text becomes a text node; the only thing that becomes anything else is the
   address of a link, and that only if it begins with http, https or mailto. No markup is ever parsed, and no picture is
   loaded. What is not known stays as it was written. */
const Markdown = (() => {
  const DEEPEST = 8; // lists, quotes and emphasis within each other; further in, text stays as it is
  const LONGEST = 20000; // characters of a paragraph in which emphasis is looked for
  const ADDRESS = /^(https?:\/\/|mailto:)[^\s]+$/i;
  const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
  const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
  const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
  const QUOTE = /^ {0,3}> ?/;
  const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
  const COLUMNS = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
  const INLINE = new RegExp([
    /\\(?<itself>[!-\/:-@[-`{-~])/,
    /(?<ticks>`+)(?<code>[^`]|[^`].*?[^`])\k<ticks>(?!`)/,
    /\*\*(?=\S)(?<strong>.+?)(?<=\S)\*\*(?!\*)/,
    /(?<!\w)__(?=\S)(?<strong_>.+?)(?<=\S)__(?!\w)/,
    /\*(?=[^\s*])(?<em>.+?)(?<=[^\s*])\*(?!\*)/,
    /(?<!\w)_(?=[^\s_])(?<em_>.+?)(?<=[^\s_])_(?!\w)/,
    /~~(?=\S)(?<s>.+?)(?<=\S)~~/,
    /!?\[(?<words>[^\[\]]*)\]\((?<address>[^()\s]*)\)/, // a link, or a picture, which stays as it was written
  ].map((part) => part.source).join("|"), "s");

  function add(parent, tag, text) {
    const made = parent.appendChild(document.createElement(tag));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /** Text with code, emphasis and links. */
  function inline(parent, text, depth) {
    for (let rest = text; rest;) {
      const found = depth < DEEPEST && rest.length <= LONGEST ? INLINE.exec(rest) : null;
      if (!found) return void parent.append(rest);
      const [whole] = found;
      const { itself, code, strong, strong_, em, em_, s, words, address } = found.groups;
      parent.append(rest.slice(0, found.index));
      rest = rest.slice(found.index + whole.length);
      if (itself !== undefined) parent.append(itself);
      else if (code !== undefined) add(parent, "code", code.trim() ? code.replace(/^ (.*) $/s, "$1") : code);
      else if (words === undefined) {
        const tag = strong ?? strong_ ? "strong" : em ?? em_ ? "em" : "s";
        inline(add(parent, tag), strong ?? strong_ ?? em ?? em_ ?? s, depth + 1);
      } else if (whole.startsWith("!") || !ADDRESS.test(address)) parent.append(whole);
      else {
        const link = add(parent, "a");
        link.href = address;
        link.rel = "noopener noreferrer nofollow";
        link.target = "_blank";
        inline(link, words || address, DEEPEST);
      }
    }
  }

  const begins = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

  /** The blocks of some lines: [kind, lines]. */
  function blocksOf(lines) {
    const blocks = [];
    for (let at = 0; at < lines.length;) {
      const from = at;
      const line = lines[at++];
      const take = (kind) => blocks.push([kind, lines.slice(from, at)]);
      const fence = FENCE.exec(line);
      if (!line.trim()) continue;
      if (fence) {
        const closes = (other) => other.trim().length >= fence[1].length && other.trim() === fence[1][0].repeat(other.trim().length);
        while (at < lines.length && !closes(lines[at])) at += 1;
        at = Math.min(at + 1, lines.length);
        take("fence");
      } else if (HEADING.test(line)) take("heading");
      else if (RULE.test(line)) take("rule");
      else if (QUOTE.test(line)) {
        while (at < lines.length && lines[at].trim() && (QUOTE.test(lines[at]) || !begins(lines[at]))) at += 1;
        take("quote");
      } else if (ITEM.test(line)) {
        const ordered = /\d/.test(ITEM.exec(line)[2]);
        for (; at < lines.length; at += 1) {
          const next = lines[at].trim() ? lines[at] : lines.slice(at).find((other) => other.trim());
          if (next === undefined) break;
          const item = ITEM.exec(next);
          const same = item && (item[1].length > 1 || /\d/.test(item[2]) === ordered) && !RULE.test(next);
          if (!same && !/^\s{2,}/.test(next) && (!lines[at].trim() || begins(next))) break;
        }
        take("list");
      } else if (line.includes("|") && at < lines.length && COLUMNS.test(lines[at]) && lines[at].includes("-")) {
        while (at < lines.length && lines[at].includes("|")) at += 1;
        take("table");
      } else {
        while (at < lines.length && lines[at].trim() && !begins(lines[at])) at += 1;
        take("paragraph");
      }
    }
    return blocks;
  }

  const MAKE = {
    paragraph: (parent, lines, depth) => inline(add(parent, "p"), lines.join("\n").trim(), depth),
    heading(parent, [line], depth) {
      const [, signs, words] = HEADING.exec(line);
      inline(add(parent, `h${Math.min(6, signs.length + 2)}`), words, depth); // below the page's own headings
    },
    rule: (parent) => add(parent, "hr"),
    fence(parent, lines) {
      const [, sign, language] = FENCE.exec(lines[0]);
      const closed = lines.length > 1 && lines.at(-1).trim().startsWith(sign) && !lines.at(-1).trim().slice(sign.length).replaceAll(sign[0], "");
      const box = add(parent, "pre");
      if (language) box.dataset.language = language;
      add(box, "code", lines.slice(1, closed ? -1 : undefined).join("\n"));
    },
    quote: (parent, lines, depth) => fill(add(parent, "blockquote"), lines.map((line) => line.replace(QUOTE, "")), depth + 1),
    list(parent, lines, depth) {
      const [, indent, mark] = ITEM.exec(lines[0]);
      const list = add(parent, /\d/.test(mark) ? "ol" : "ul");
      if (/\d/.test(mark)) list.start = Number.parseInt(mark, 10);
      let item = [];
      let width = 0;
      const close = () => { if (item.length) fill(add(list, "li"), item, depth + 1, true); };
      for (const line of lines) {
        const found = ITEM.exec(line);
        if (found && found[1].length <= indent.length + 1) {
          close();
          width = found[0].length;
          item = [line.slice(width)];
        } else item.push(line.slice(Math.min(width, line.length - line.trimStart().length)));
      }
      close();
    },
    table(parent, lines, depth) {
      const cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
      const table = add(add(parent, "div"), "table");
      const row = (tag, values) => {
        const line = add(table, "tr");
        for (const value of values) inline(add(line, tag), value, depth);
      };
      row("th", cells(lines[0]));
      for (const line of lines.slice(2)) row("td", cells(line));
    },
  };

  /** The blocks of some lines; a `tight` one, of a list, holds its first paragraph without an element of its own. */
  function fill(parent, lines, depth, tight = false) {
    if (depth >= DEEPEST) return void add(parent, "p", lines.join("\n"));
    blocksOf(lines).forEach(([kind, own], number) => {
      if (tight && !number && kind === "paragraph") inline(parent, own.join("\n").trim(), depth);
      else MAKE[kind](parent, own, depth);
    });
  }

  const written = new WeakMap(); // what each block of an element was made of

  /** Shows a text in an element. What stands there of a text that it goes on from stays: only the last block grows. */
  function render(element, text) {
    const before = written.get(element) ?? [];
    const blocks = blocksOf(text.split("\n"));
    const sources = blocks.map(([, lines]) => lines.join("\n"));
    let same = 0;
    while (same < sources.length && sources[same] === before[same]) same += 1;
    while (element.children.length > same) element.lastChild.remove();
    for (const [kind, lines] of blocks.slice(same)) MAKE[kind](element, lines, 0);
    written.set(element, sources);
  }

  return { render };
})();

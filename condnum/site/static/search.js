// Excerpts of search hits, from excerpts.js: Sphinx would fetch each page, which file:// forbids.
Search.htmlToText = (text) => text;
window.fetch = async (page) => new Response(condnumTexts[page.replace(/^(\.\/)+|\.html$/g, "")]);
{ // Sphinx drops numbers and splits names at dots: pages with the very words of a query come first.
  const perform = Search._performSearch;
  Search._performSearch = (query, ...terms) => {
    const { docnames, filenames, titles } = Search._index, words = query.toLowerCase().trim();
    const exact = words.length < 3 ? [] : docnames.flatMap((name, place) => (condnumTexts[name] ?? "").toLowerCase().includes(words)
      ? [[name, titles[place], "", null, 1, filenames[place], SearchResultKind.text]] : []);
    const found = perform(query, ...terms).filter(([name, , anchor]) => anchor || !exact.some(([other]) => other === name));
    return [...found, ...exact.reverse()]; // shown from the last one on
  };
}

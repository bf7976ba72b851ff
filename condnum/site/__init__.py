"""The one site: start, lessons, explorers, results beside the published ones, how-to, API and glossary.

`build` gathers a source folder and lets Sphinx make pages of it; `results` writes the pages of a
reproduction; `notebooks` turns executed notebooks into what a page without a kernel shows; `extension` is
what Sphinx has to be told. `pages/` holds the text, in MyST Markdown.
"""

"""The frame that all HTML pages of this package share: escaping, style, tables, figures."""

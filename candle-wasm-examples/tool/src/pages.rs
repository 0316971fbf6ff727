//! The pages, and what their HTML shares: the same head, and links to all of them.

use crate::at;
use std::fs;
use std::path::Path;

/// The folders with a `page`, and what links call them.
pub const PAGES: [(&str, &str); 8] = [
    ("chat", "Chat"),
    ("llm", "Language model"),
    ("transcribe", "Speech to text"),
    ("vision", "Pictures"),
    ("search", "Search"),
    ("embeddings", "Similarity"),
    ("dvm", "Vending machine"),
    ("ops", "Ops"),
];

/// Replaced by the common contents of all pages' heads.
const HEAD: &str = "    <!-- head -->\n";
/// Replaced by links to all pages.
const LINKS: &str = "        <!-- pages -->\n";

/// Fills in the page in a folder of the site.
///
/// # Errors
/// It says nowhere that it wants a head or links.
pub fn fill(site: &Path, folder: &str) -> Result<(), String> {
    let file = site.join(folder).join("index.html");
    let text = fs::read_to_string(&file).map_err(at(&file))?;
    let filled = filled(&text, folder).map_err(|err| format!("{}: {err}", file.display()))?;
    fs::write(&file, filled).map_err(at(&file))
}

/// `folder` is empty for the list of all pages, which has no links of this kind.
fn filled(page: &str, folder: &str) -> Result<String, String> {
    let up = if folder.is_empty() { "" } else { "../" };
    let head = format!(
        "    <meta charset=\"utf-8\">\n    \
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n    \
         <link rel=\"icon\" href=\"data:,\">\n    \
         <link rel=\"stylesheet\" href=\"{up}style.css\">\n"
    );
    let page = replaced(page, HEAD, &head)?;
    if folder.is_empty() {
        Ok(page)
    } else {
        replaced(&page, LINKS, &links(folder))
    }
}

fn links(current: &str) -> String {
    let link = |(folder, name): &(&str, &str)| {
        let here = if *folder == current {
            " aria-current=\"page\""
        } else {
            ""
        };
        format!("            <a href=\"../{folder}/\"{here}>{name}</a>\n")
    };
    let all: String = PAGES.iter().map(link).collect();
    format!(
        "        <nav aria-label=\"Pages\">\n            <a href=\"../\">All pages</a>\n{all}        </nav>\n"
    )
}

fn replaced(page: &str, mark: &str, by: &str) -> Result<String, String> {
    match page.split_once(mark) {
        Some((before, after)) => Ok(format!("{before}{by}{after}")),
        None => Err(format!("there is no line `{}`", mark.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::{filled, links, PAGES};
    use crate::examples;
    use std::fs;

    #[test]
    fn the_current_page_is_marked() {
        let links = links("llm");
        assert!(
            links.contains("<a href=\"../llm/\" aria-current=\"page\">Language model</a>"),
            "{links}"
        );
        assert_eq!(links.matches("aria-current").count(), 1);
        assert!(filled("<head></head>", "llm")
            .unwrap_err()
            .contains("<!-- head -->"));
    }

    #[test]
    fn every_page_is_filled_and_in_the_list() {
        let list = fs::read_to_string(examples().join("page/index.html")).unwrap();
        for (folder, _) in PAGES {
            let file = examples().join(folder).join("page/index.html");
            let page = fs::read_to_string(&file).unwrap();
            let page = filled(&page, folder).unwrap_or_else(|err| panic!("{folder}: {err}"));
            assert!(page.contains("../style.css") && page.matches("<nav").count() == 1);
            assert!(
                list.contains(&format!("<a href=\"{folder}/\">")),
                "{folder} is not in the list"
            );
            let picture = format!("pictures/{folder}.webp");
            assert!(list.contains(&picture));
            let size = fs::metadata(examples().join("page").join(&picture)).unwrap();
            assert!(size.len() <= 40_000, "{picture} has {} bytes", size.len());
        }
    }
}

//! The commented sample file, made from the declarations.

use std::fmt::Write;

use super::{keys, settings::Setting};

/// Every key with its default: parsing it gives `Config::default()`.
pub fn sample() -> String {
    let mut text = String::from(
        "# Longshore configuration. Every key is shown with its default; keys behind a `#` are\n\
         # unset, with what they then come to. Environment (LONGSHORE_…) and flags win over it.\n",
    );
    for setting in keys::top() {
        show(&mut text, setting, false);
    }
    for section in keys::SECTIONS {
        let (mark, name) = if section.named { ("# ", ".NAME") } else { ("", "") };
        writeln!(text, "\n{mark}[{}{name}]", section.name).expect("a String takes all");
        for setting in section.plain() {
            show(&mut text, setting, section.named);
        }
    }
    text
}

fn show(text: &mut String, setting: &Setting, commented: bool) {
    for line in setting.doc {
        writeln!(text, "#{line}").expect("a String takes all");
    }
    let key = setting.key;
    match (setting.default)() {
        Ok(value) if !commented => writeln!(text, "{key} = {value}"),
        Ok(value) => writeln!(text, "# {key} = {value}"),
        Err(shown) => writeln!(text, "# {key} = {shown}"),
    }
    .expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_sample_is_the_default() {
        assert_eq!(toml::from_str::<Config>(&sample()).unwrap(), Config::default());
    }

    /// `LONGSHORE_BLESS=1 cargo test -p longshore` writes it anew.
    #[test]
    fn the_file_in_docs_is_the_sample() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.sample.toml");
        if std::env::var_os("LONGSHORE_BLESS").is_some() {
            std::fs::write(path, sample()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), sample());
    }

    /// What the sample says of unset keys is what they come to.
    #[test]
    fn the_shown_values_are_those_of_a_plain_host() {
        let mut named = false;
        let uncommented: String = sample()
            .lines()
            .filter(|line| {
                // Of a section that may be there many times nothing is there by itself.
                if line.contains('[') && !line.contains(" = ") {
                    named = line.contains("NAME");
                }
                !named && !line.contains("_handler") && !line.contains("tcp")
            })
            .filter(|line| !line.contains("tls_") && !line.contains("_proxy = "))
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.contains(" = \"") => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let shown = toml::from_str::<Config>(&uncommented).unwrap().check().unwrap();
        assert_eq!(shown, Config::default().check().unwrap());
        assert_ne!(toml::from_str::<Config>(&uncommented).unwrap(), Config::default());
    }

    #[test]
    fn every_key_is_documented() {
        let undocumented = keys::top()
            .chain(keys::SECTIONS.iter().flat_map(keys::Section::plain))
            .filter(|setting| setting.doc.is_empty());
        assert_eq!(undocumented.map(|s| s.key).collect::<Vec<_>>(), [""; 0]);
    }
}

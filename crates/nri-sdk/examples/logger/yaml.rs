//! JSON values as YAML, in blocks that people can read.

use std::fmt::Write;

use serde_json::Value;

/// One document, without the line that begins it. All texts are quoted, so nothing in them
/// can be mistaken for anything else.
pub(crate) fn to_yaml(value: &Value) -> String {
    let mut text = lines(value).join("\n");
    text.push('\n');
    text
}

fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            entries.iter().flat_map(|(key, value)| entry(key, value)).collect()
        }
        Value::Array(items) if !items.is_empty() => items.iter().flat_map(item).collect(),
        other => vec![scalar(other)],
    }
}

fn entry(key: &str, value: &Value) -> Vec<String> {
    let key = quoted_unless_plain(key);
    if is_block(value) {
        let below = lines(value).into_iter().map(|line| format!("  {line}"));
        return std::iter::once(format!("{key}:")).chain(below).collect();
    }
    vec![format!("{key}: {}", scalar(value))]
}

fn item(value: &Value) -> Vec<String> {
    let indent = |(i, line)| format!("{} {line}", if i == 0 { "-" } else { " " });
    lines(value).into_iter().enumerate().map(indent).collect()
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(entries) => !entries.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Object(_) => "{}".into(),
        Value::Array(_) => "[]".into(),
        other => other.to_string(),
    }
}

/// The names of our fields need no quotes; that of an annotation may.
fn quoted_unless_plain(key: &str) -> String {
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let plain = key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !words.contains(&key);
    if plain { key.to_owned() } else { quoted(key) }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let written = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            '\n' => write!(quoted, "\\n"),
            '\t' => write!(quoted, "\\t"),
            // What YAML calls not printable, and what may be taken for the end of a line.
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') =>
            {
                write!(quoted, "\\u{:04x}", u32::from(c))
            }
            c => write!(quoted, "{c}"),
        };
        written.expect("a string takes all that is written to it");
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[a-z0-9:# -]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            let map = proptest::collection::btree_map("[a-z~=-]{1,5}", inner.clone(), 0..4);
            prop_oneof![
                proptest::collection::vec(inner, 0..4).prop_map(Value::from),
                map.prop_map(|map| map.into_iter().collect::<Value>()),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in value()) {
            let text = to_yaml(&value);
            let read: Value = serde_saphyr::from_str(&text)
                .map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
            prop_assert_eq!(read, value, "{}", text);
        }
    }

    #[test]
    fn blocks_are_indented() {
        let value = serde_json::json!({"a": [{"b": 1, "c": "x"}, []], "no": {"e": {}}});
        let want = "a:\n  - b: 1\n    c: \"x\"\n  - []\n\"no\":\n  e: {}\n";
        assert_eq!(to_yaml(&value), want);
    }
}

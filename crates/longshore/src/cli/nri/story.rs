//! Who set what of a container: a table, and the difference it made to the spec.
//!
//! ```text
//! FIELD        BEFORE  AFTER  PLUGIN
//! Env "WHO"    -       probe  10-probe
//! OomScoreAdj  0       500    10-probe
//!
//! - /process/oomScoreAdj 0
//! + /process/oomScoreAdj 500
//! + /process/env "WHO=probe"
//! ```

use std::io::{self, Write};

use engine::nri::{Changed, FieldStory, NotGranted};
use serde_json::Value;

use crate::cli::{table::Table, terminal};

/// Of a table that no terminal shows.
const WIDTH: usize = 120;
/// No value is cut shorter than this: what is left would say nothing.
const LEAST: usize = 12;

pub(super) fn print(
    out: &mut impl Write,
    fields: &[FieldStory],
    changes: &[Changed],
) -> io::Result<()> {
    let terminal = terminal::size().map(|size| usize::try_from(size.width).unwrap_or(WIDTH));
    print_within(out, fields, changes, terminal)
}

/// Lines of the difference are cut only to fit a terminal.
fn print_within(
    out: &mut impl Write,
    fields: &[FieldStory],
    changes: &[Changed],
    terminal: Option<usize>,
) -> io::Result<()> {
    if !fields.is_empty() {
        writeln!(out, "{}", table(fields, terminal.unwrap_or(WIDTH)))?;
    }
    for Changed { path, before, after } in changes {
        for (sign, side) in [('-', before), ('+', after)] {
            for value in items(side) {
                let line = format!("{sign} {path} {value}");
                writeln!(out, "{}", terminal.map_or(line.clone(), |width| cut(&line, width)))?;
            }
        }
    }
    Ok(())
}

/// What plugins asked for and did not get.
pub(super) fn print_not_granted(out: &mut impl Write, refused: &[NotGranted]) -> io::Result<()> {
    if refused.is_empty() {
        return Ok(());
    }
    let terminal = terminal::size().map(|size| usize::try_from(size.width).unwrap_or(WIDTH));
    let most = terminal.unwrap_or(WIDTH) / 3;
    let mut table = Table::new(["NOT GRANTED", "ASKED FOR", "PLUGIN", "WHY"]);
    for NotGranted { field, asked, plugin, why } in refused {
        let asked = cut(&text(asked), most.max(LEAST));
        table.row([field.clone(), asked, plugin.clone(), why.clone()]);
    }
    write!(out, "\n{table}")
}

fn table(fields: &[FieldStory], width: usize) -> Table<4> {
    let texts: Vec<_> = fields.iter().map(|f| [text(&f.before), text(&f.after)]).collect();
    let widest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).max(6);
    let length = |text: &str| text.chars().count();
    let names = widest(&mut fields.iter().map(|f| length(&f.field)))
        + widest(&mut fields.iter().map(|f| length(&f.plugin)));
    let sides = [0, 1].map(|side: usize| widest(&mut texts.iter().map(|t| length(&t[side]))));
    // Two spaces after each column but the last.
    let [before, after] = share(width.saturating_sub(names + 6), sides);
    let mut table = Table::new(["FIELD", "BEFORE", "AFTER", "PLUGIN"]);
    for (f, [old, new]) in fields.iter().zip(texts) {
        table.row([f.field.clone(), cut(&old, before), cut(&new, after), f.plugin.clone()]);
    }
    table
}

/// Room for two columns: the narrower has what it wants, as long as that is not more than half.
fn share(room: usize, [a, b]: [usize; 2]) -> [usize; 2] {
    let half = room / 2;
    let [a, b] = match (a <= half, b <= half) {
        (true, _) => [a, room - a],
        (_, true) => [room - b, b],
        _ => [half, room - half],
    };
    [a.max(LEAST), b.max(LEAST)]
}

/// As people write it: text without quotes, nothing as a dash.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if !text.is_empty() && !text.contains(char::is_control) => text.clone(),
        other => other.to_string(),
    }
}

/// What came and went, one by one.
fn items(side: &Value) -> Vec<String> {
    match side {
        Value::Null => Vec::new(),
        Value::Array(list) => list.iter().map(ToString::to_string).collect(),
        other => vec![other.to_string()],
    }
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(field: &str, before: Value, after: Value, plugin: &str) -> FieldStory {
        FieldStory { field: field.to_owned(), before, after, plugin: plugin.to_owned() }
    }

    fn change(path: &str, before: Value, after: Value) -> Changed {
        Changed { path: path.to_owned(), before, after }
    }

    fn shown(fields: &[FieldStory], changes: &[Changed], terminal: Option<usize>) -> String {
        let mut out = Vec::new();
        print_within(&mut out, fields, changes, terminal).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_row_per_field_then_the_difference() {
        let fields = [
            field("Env \"WHO\"", Value::Null, json!("probe"), "10-probe"),
            field("Env \"GONE\"", json!(""), Value::Null, "20-other"),
            field("OomScoreAdj", json!(0), json!(500), "10-probe"),
        ];
        let changes = [
            change("/process/env", json!(["GONE="]), json!(["WHO=probe"])),
            change("/process/oomScoreAdj", json!(0), json!(500)),
            change("/linux/sysctl/a", Value::Null, json!("1")),
        ];
        let want = "\
FIELD        BEFORE  AFTER  PLUGIN
Env \"WHO\"    -       probe  10-probe
Env \"GONE\"   \"\"      -      20-other
OomScoreAdj  0       500    10-probe

- /process/env \"GONE=\"
+ /process/env \"WHO=probe\"
- /process/oomScoreAdj 0
+ /process/oomScoreAdj 500
+ /linux/sysctl/a \"1\"
";
        assert_eq!(shown(&fields, &changes, None), want);
    }

    #[test]
    fn long_values_are_cut_to_fit() {
        let long = json!("x".repeat(500));
        let fields = [
            field("Args", json!(["true"]), long.clone(), "10-a"),
            field("Sysctl \"a\"", long.clone(), Value::Null, "10-a"),
        ];
        let changes = [change("/a", Value::Null, long)];
        for line in shown(&fields, &changes, Some(60)).lines() {
            assert!(line.chars().count() <= 60, "{line}");
        }
        let piped = shown(&fields, &changes, None);
        assert_eq!(piped.lines().map(|line| line.chars().count()).max(), Some(507));
        assert!(piped.lines().take(3).all(|line| line.chars().count() <= WIDTH), "{piped}");
        // A terminal too narrow for anything still gets something of each.
        assert!(shown(&fields, &changes, Some(10)).contains("xxxxxxxxxxx…"));
    }

    #[test]
    fn room_goes_to_who_needs_it() {
        assert_eq!(share(80, [6, 200]), [12, 74]);
        assert_eq!(share(80, [200, 20]), [60, 20]);
        assert_eq!(share(80, [200, 200]), [40, 40]);
        assert_eq!(share(0, [200, 200]), [12, 12]);
    }
}

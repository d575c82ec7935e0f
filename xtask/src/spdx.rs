//! Licence expressions, as far as `license = "…"` in a Cargo.toml goes.
//!
//! ```text
//! any  = all ( ("OR" | "/") all )*        "/" is how old crates wrote OR
//! all  = term ( "AND" term )*
//! term = "(" any ")" | id [ "WITH" id ]
//! ```

use anyhow::{Result, bail, ensure};

/// Whether the expression can be satisfied with licences that `allowed` accepts. A licence with
/// an exception is asked for as one: `Apache-2.0 WITH LLVM-exception`.
pub(crate) fn satisfied(expression: &str, allowed: &impl Fn(&str) -> bool) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut rest = Tokens { tokens: spaced.split_whitespace().collect(), next: 0 };
    let verdict = any(&mut rest, allowed)?;
    ensure!(rest.peek().is_none(), "unexpected {:?}", rest.peek().unwrap_or_default());
    Ok(verdict)
}

struct Tokens<'a> {
    tokens: Vec<&'a str>,
    next: usize,
}

impl<'a> Tokens<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).copied()
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }

    fn id(&mut self) -> Result<&'a str> {
        match self.peek() {
            None => bail!("a licence is missing at the end"),
            Some(word @ ("(" | ")" | "OR" | "AND" | "WITH")) => {
                bail!("{word:?} where a licence should be")
            }
            Some(id) => {
                self.next += 1;
                Ok(id)
            }
        }
    }
}

// Both sides are always read, so that nonsense after a satisfied half is still seen.
fn any(rest: &mut Tokens<'_>, allowed: &impl Fn(&str) -> bool) -> Result<bool> {
    let mut verdict = all(rest, allowed)?;
    while rest.take("OR") {
        verdict |= all(rest, allowed)?;
    }
    Ok(verdict)
}

fn all(rest: &mut Tokens<'_>, allowed: &impl Fn(&str) -> bool) -> Result<bool> {
    let mut verdict = term(rest, allowed)?;
    while rest.take("AND") {
        verdict &= term(rest, allowed)?;
    }
    Ok(verdict)
}

fn term(rest: &mut Tokens<'_>, allowed: &impl Fn(&str) -> bool) -> Result<bool> {
    if rest.take("(") {
        let verdict = any(rest, allowed)?;
        ensure!(rest.take(")"), "a parenthesis is not closed");
        return Ok(verdict);
    }
    let id = rest.id()?;
    if rest.take("WITH") {
        let exception = rest.id()?;
        return Ok(allowed(&format!("{id} WITH {exception}")));
    }
    Ok(allowed(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expression: &str, want: &str) {
        let allowed = |id: &str| ["MIT", "Apache-2.0", "GPL-2.0 WITH Fine"].contains(&id);
        let got = satisfied(expression, &allowed)
            .map_or_else(|e| e.to_string(), |yes| if yes { "yes" } else { "no" }.to_owned());
        assert_eq!(got, want, "{expression}");
    }

    #[test]
    fn verdicts() {
        check("MIT", "yes");
        check("GPL-3.0", "no");
        check("GPL-3.0 OR MIT", "yes");
        check("MIT/GPL-3.0", "yes");
        check("MIT AND GPL-3.0", "no");
        check("MIT AND Apache-2.0", "yes");
        check("GPL-2.0 WITH Fine", "yes");
        check("MIT WITH Fine", "no");
    }

    #[test]
    fn and_binds_tighter_than_or() {
        check("MIT OR Apache-2.0 AND GPL-3.0", "yes");
        check("(MIT OR Apache-2.0) AND GPL-3.0", "no");
        check("GPL-3.0 AND Apache-2.0 OR MIT", "yes");
        check("GPL-3.0 AND (Apache-2.0 OR MIT)", "no");
    }

    #[test]
    fn nonsense_is_an_error_and_never_a_yes() {
        check("", "a licence is missing at the end");
        check("MIT OR", "a licence is missing at the end");
        check("MIT Apache-2.0", "unexpected \"Apache-2.0\"");
        check("(MIT", "a parenthesis is not closed");
        check("MIT OR AND", "\"AND\" where a licence should be");
        check("MIT)", "unexpected \")\"");
    }
}

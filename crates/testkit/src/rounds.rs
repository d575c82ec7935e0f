/// How often a loop turns: `default` times, or as `LONGSHORE_TEST_ROUNDS` says.
pub fn rounds(default: u32) -> u32 {
    let set = std::env::var("LONGSHORE_TEST_ROUNDS").ok();
    set.map_or(default, |rounds| rounds.parse().expect("LONGSHORE_TEST_ROUNDS is a number"))
}

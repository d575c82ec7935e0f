/// How often a loop turns: `default` times, or as `LONGSHORE_TEST_ROUNDS` says.
pub fn rounds(default: u32) -> u32 {
    let set = std::env::var("LONGSHORE_TEST_ROUNDS").ok();
    set.map_or(default, |rounds| rounds.parse().expect("LONGSHORE_TEST_ROUNDS is a number"))
}

/// How many times slower than real ones this machine is, as `LONGSHORE_TEST_SLOWNESS` says: one
/// that is emulated in software needs longer limits on what works.
pub fn slowness() -> u32 {
    let set = std::env::var("LONGSHORE_TEST_SLOWNESS").ok();
    set.map_or(1, |times| times.parse().expect("LONGSHORE_TEST_SLOWNESS is a number"))
}

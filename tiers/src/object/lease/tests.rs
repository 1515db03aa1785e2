use proptest::prelude::*;

use super::*;

const LENGTH: Duration = Duration::from_secs(30);

fn at(seconds: f64) -> Time {
    Time::default().plus(Duration::from_secs_f64(seconds))
}

fn ms(seconds: f64) -> u64 {
    (seconds * 1_000.0) as u64
}

fn step(lease: &Lease, seconds: f64) -> Step {
    lease.step(at(seconds), ms(seconds))
}

#[test]
fn the_first_takes_it_at_once_and_renews_in_time() {
    let mut lease = Lease::new(LENGTH);
    assert_eq!(step(&lease, 0.0), Step::Rest, "nothing was listed yet");
    lease.saw(None, at(0.0));
    assert_eq!(step(&lease, 0.0), Step::Take(1));
    lease.took(1, at(0.0), 0);
    assert!(lease.holds(at(9.0), ms(9.0)));
    assert_eq!(step(&lease, 9.0), Step::Rest);
    assert_eq!(step(&lease, 10.0), Step::Take(2));
    assert!(lease.holds(at(23.9), ms(23.9)));
    assert!(!lease.holds(at(24.0), ms(24.0)), "a fifth before others take over");
}

#[test]
fn others_take_over_when_the_highest_term_stands_still() {
    let mut other = Lease::new(LENGTH);
    other.saw(Some(4), at(100.0));
    other.saw(Some(4), at(120.0));
    assert_eq!(step(&other, 129.0), Step::Rest);
    other.saw(Some(5), at(129.0));
    assert_eq!(step(&other, 158.0), Step::Rest, "it was renewed");
    assert_eq!(step(&other, 159.0), Step::Take(6));
    other.missed(6, at(159.0));
    assert_eq!(step(&other, 160.0), Step::Rest);
    assert!(!other.holds(at(160.0), ms(160.0)));
}

#[test]
fn a_machine_that_slept_does_not_hold_it() {
    let mut lease = Lease::new(LENGTH);
    lease.took(1, at(0.0), 0);
    // The monotonic clock stood still for an hour.
    assert!(!lease.holds(at(1.0), ms(3_600.0)));
    assert_eq!(lease.step(at(1.0), ms(3_600.0)), Step::Rest, "it looks first whether another has it");
    lease.saw(Some(7), at(2.0));
    assert_eq!(lease.term(), None);
}

#[test]
fn terms_go_on_where_the_bucket_was_emptied() {
    let mut lease = Lease::new(LENGTH);
    lease.took(9, at(0.0), 0);
    lease.saw(None, at(5.0));
    assert!(lease.holds(at(5.0), ms(5.0)));
    assert_eq!(step(&lease, 10.0), Step::Take(10));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Nodes with clocks of their own (offsets, and rates that differ by a percent) that look, take, stop and go on at random: at no
    /// moment do two hold it, as long as no clock runs a fifth faster than another.
    #[test]
    fn one_at_a_time(
        turns in proptest::collection::vec((0..3_usize, 1..9_000_u64, any::<bool>()), 1..400),
    ) {
        let mut now_ms = 0_u64;
        let mut terms: Vec<u64> = Vec::new();
        let mut leases: Vec<Lease> = (0..3).map(|_| Lease::new(LENGTH)).collect();
        let local = |node: usize, now_ms: u64| {
            let rate = 0.99 + 0.01 * node as f64;
            let ms = (now_ms as f64 * rate) as u64 + node as u64 * 1_000_000;
            (Time::default().plus(Duration::from_millis(ms)), ms)
        };
        for (node, pause, acts) in turns {
            now_ms += pause;
            let (now, wall_ms) = local(node, now_ms);
            if acts {
                leases[node].saw(terms.last().copied(), now);
                if let Step::Take(term) = leases[node].step(now, wall_ms) {
                    if terms.contains(&term) {
                        leases[node].missed(term, now);
                    } else {
                        terms.push(term);
                        leases[node].took(term, now, wall_ms);
                    }
                }
            }
            let holders = (0..3).filter(|node| {
                let (now, wall_ms) = local(*node, now_ms);
                leases[*node].holds(now, wall_ms)
            });
            prop_assert!(holders.count() <= 1);
        }
    }
}

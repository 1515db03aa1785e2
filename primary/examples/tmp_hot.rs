//! tmp
use std::hint::black_box; use std::ops::ControlFlow; use terrace_primary::*; use terrace_config::Policy;
#[inline(never)]
fn hot(p: &Primary, keys: &[Key]) -> u64 { let mut sum=0; p.find_batch(keys, |_, f| match f { Some((s,_)) => {sum+=u64::from(s.0); ControlFlow::Continue(())} None=>ControlFlow::Break(())}); sum }
fn main(){
 let n=10_000u32; let mut p=Primary::new(n,32,Policy::Lru);
 let k=|b:u32|{let mut h=[0u8;32]; let mut x=u64::from(b); for w in h.chunks_mut(8){ x=x.wrapping_add(0x9e37_79b9_7f4a_7c15); let mut y=x; y=(y^y>>30).wrapping_mul(0xbf58_476d_1ce4_e5b9); y=(y^y>>27).wrapping_mul(0x94d0_49bb_1331_11eb); y^=y>>31; w.copy_from_slice(&y.to_le_bytes());} Key::new(&h,0).unwrap()};
 for b in 0..n { let s=p.insert_writing(&k(b)).unwrap(); p.publish(s);} 
 let sets: Vec<Vec<Key>> = (0..16).map(|s:u32| (0..1000u32).map(|i| k((i.wrapping_mul(7919)+s*1237)%n)).collect()).collect();
 let t=std::time::Instant::now(); let mut sum=0; let rounds=20_000;
 for r in 0..rounds { sum+=hot(black_box(&p),black_box(&sets[r%16])); }
 println!("{:.2} ns/key {sum}", t.elapsed().as_nanos() as f64/ rounds as f64/1000.0);
}

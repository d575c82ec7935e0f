use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// An address with the length of its network's prefix: `10.1.2.3/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    pub addr: IpAddr,
    pub prefix: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address with a prefix length, like 10.1.0.0/16 or fd00::/64")]
pub struct CidrError(pub String);

impl Cidr {
    pub fn is_v4(self) -> bool {
        self.addr.is_ipv4()
    }

    /// With the bits of the host cleared: the network itself.
    pub fn network(self) -> Self {
        let addr = match self.addr {
            IpAddr::V4(addr) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                Ipv4Addr::from_bits(addr.to_bits() & mask).into()
            }
            IpAddr::V6(addr) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                Ipv6Addr::from_bits(addr.to_bits() & mask).into()
            }
        };
        Self { addr, prefix: self.prefix }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let wrong = || CidrError(text.to_owned());
        let (addr, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        // `u8` would also take a sign.
        if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        if prefix > if addr.is_ipv4() { 32 } else { 128 } {
            return Err(wrong());
        }
        Ok(Self { addr, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, network: Option<&str>) {
        let got = text.parse::<Cidr>().ok().map(|cidr| cidr.network().to_string());
        assert_eq!(got.as_deref(), network, "{text}");
    }

    #[test]
    fn networks() {
        check("10.1.2.3/24", Some("10.1.2.0/24"));
        check("10.1.2.3/0", Some("0.0.0.0/0"));
        check("10.1.2.3/32", Some("10.1.2.3/32"));
        check("fd00:1::7/64", Some("fd00:1::/64"));
        check("fd00:1::7/0", Some("::/0"));
        check("fd00:1::7/128", Some("fd00:1::7/128"));
        for bad in
            ["", "10.1.2.3", "10.1.2.3/", "10.1.2.3/33", "10.1.2.3/+8", "::/129", "a/8", "1/2/3"]
        {
            check(bad, None);
        }
    }

    proptest! {
        #[test]
        fn text_reads_back(addr: IpAddr, prefix in 0..=128_u8) {
            let prefix = if addr.is_ipv4() { prefix.min(32) } else { prefix };
            let cidr = Cidr { addr, prefix };
            prop_assert_eq!(cidr.to_string().parse(), Ok(cidr));
            prop_assert_eq!(cidr.network().network(), cidr.network());
        }
    }
}

"""Linear models of the joint space, most of which are fitted to moments (Gong et al. 2014, section 3)."""

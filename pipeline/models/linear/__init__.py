"""Linear joint spaces as functions of moments (Gong et al. 2014, section 3)."""
